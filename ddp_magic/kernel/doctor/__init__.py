"""Gathers the facts that ``%ddp doctor`` judges (see `ddp_magic.core.doctor`)."""
