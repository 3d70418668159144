"""What many patterns share; ``part``, ``record`` and ``see`` are the harness's."""

from __future__ import annotations

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
    def encode(self, x):
        return torch.tanh(self.body(x))
    def forward(self, x):
        return self.head(self.encode(x))
"""

# For gradients that are nearly zero, of which Adam makes steps as large as of any.
DOUBLE = "torch.set_default_dtype(torch.double); x, y = x.double(), y.double()\n"

SGD_LOOP = """
for _ in range(4):
    opt.zero_grad()
    F.mse_loss(net(part(x)), part(y)).backward()
    opt.step()
    record(net)
see(kind=type(net).__name__, keys=list(net.state_dict()))
"""
