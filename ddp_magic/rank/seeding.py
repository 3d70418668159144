import torch
def seed_everything(seed):
    torch.manual_seed(seed)
