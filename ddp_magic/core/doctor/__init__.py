"""What ``%ddp doctor`` makes of what it finds: each check turns facts into a finding."""
