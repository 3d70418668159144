"""Code that names the first GPU literally means the rank's own."""

from __future__ import annotations

import ast

import pytest

from ddp_magic.core.gpuliterals import own_gpu


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("device = 'cuda:0'", "device = 'cuda:3'"),
        ("x = torch.ones(3, device='cuda:0')", "x = torch.ones(3, device='cuda:3')"),
        ("device = torch.device('cuda:0')", "device = torch.device('cuda:3')"),
        ("device = torch.device('cuda', 0)", "device = torch.device('cuda', 3)"),
        ("device = torch.device('cuda', index=0)", "device = torch.device('cuda', index=3)"),
        ("device = torch.device(0)", "device = torch.device(3)"),
        ("x = x.cuda(0)", "x = x.cuda(3)"),
        ("x = net(x).to(0)", "x = net(x).to(3)"),
        ("x = x.to(0, torch.half)", "x = x.to(3, torch.half)"),
        ("x = x.to('cuda:0', non_blocking=True)", "x = x.to('cuda:3', non_blocking=True)"),
        ("x.cuda(device=0)", "x.cuda(device=3)"),
        ("x.to(device=0)", "x.to(device=3)"),
        ("torch.cuda.set_device(0)", "torch.cuda.set_device(3)"),
        ("torch.cuda.set_device(device=0)", "torch.cuda.set_device(device=3)"),
        ("with torch.cuda.device(0): f()", "with torch.cuda.device(3): f()"),
        ("nn.DataParallel(net, device_ids=[0])", "nn.DataParallel(net, device_ids=[3])"),
        (
            "DDP(net, device_ids=[0], output_device=0)",
            "DDP(net, device_ids=[3], output_device=3)",
        ),
        ("def f(device='cuda:0'): pass", "def f(device='cuda:3'): pass"),
        ("cfg = {'device': 'cuda:0', 'gpu': 0}", "cfg = {'device': 'cuda:3', 'gpu': 0}"),
        ("map_location = {'cuda:1': 'cuda:0'}", "map_location = {'cuda:1': 'cuda:3'}"),
        ("d = 'cuda:0' if torch.cuda.is_available() else 'cpu'",
         "d = 'cuda:3' if torch.cuda.is_available() else 'cpu'"),
        ("assert str(x.device) == 'cuda:0'", "assert str(x.device) == 'cuda:3'"),
        ("print(f'cuda:0{suffix}')", "print(f'cuda:3{suffix}')"),
        ("print(f'{name}' 'cuda:0')", "print(f'{name}' 'cuda:3')"),
        ("x = f(x.to(0).cuda(0))", "x = f(x.to(3).cuda(3))"),
        ("def f():\n    '''cuda:0'''\n    return 'cuda:0'",
         "def f():\n    '''cuda:0'''\n    return 'cuda:3'"),
    ],
)  # fmt: skip
def test_replaced(before: str, after: str) -> None:
    tree, lines = own_gpu(ast.parse(before), 3)
    assert ast.dump(tree) == ast.dump(ast.parse(after))
    assert lines == [before.count("\n") + 1]


@pytest.mark.parametrize(
    "source",
    [
        "'cuda:0'",
        "'''cuda:0'''\nx = 1",
        "def f():\n    'cuda:0'",
        "async def f():\n    'cuda:0'",
        "class A:\n    'cuda:0'",
        "device = 'cuda'",
        "device = 'cuda:1'",
        "device = 'cuda:01'",
        "print('on cuda:0')",
        "print(f'on cuda:0 {x}')",
        "print(f'cuda:{0}')",
        "data = b'cuda:0'",
        "x.cuda()",
        "x.cuda(1)",
        "x.cuda(False)",
        "x.to(0.0)",
        "x.to(device)",
        "x.mean(0)",
        "x.to(torch.half, 0)",
        "torch.device('cpu', 0)",
        "torch.device('cuda', 1)",
        "torch.device('cpu', index=0)",
        "torch.cuda.to(0)",
        "torch.zeros(0)",
        "torch.cuda.manual_seed(0)",
        "torch.cuda.memory_allocated(1)",
        "jax.device(0)",
        "self.device(0)",
        "to(0)",
        "f(device=0)",
        "DDP(net, device_ids=[0, 1], output_device=1)",
        "DDP(net, device_ids=None)",
        "device_ids = [0]",
    ],
)
def test_left_as_it_is(source: str) -> None:
    tree, lines = own_gpu(ast.parse(source), 3)
    assert ast.dump(tree, include_attributes=True) == ast.dump(
        ast.parse(source), include_attributes=True
    )
    assert lines == []


def test_locations_stay() -> None:
    source = """
class Net:
    '''cuda:0'''
    def f(self, device="cuda:0"):
        return (
            self.to(0),
            torch.device("cuda", 0), torch.device("cuda:0"),
        )
"""
    tree, lines = own_gpu(ast.parse(source), 0)
    assert ast.dump(tree, include_attributes=True) == ast.dump(
        ast.parse(source), include_attributes=True
    )
    assert lines == [4, 6, 7]
    compile(tree, "<cell>", "exec")


def test_code_runs() -> None:
    tree, _ = own_gpu(ast.parse("device = 'cuda:0'\nids = dict(device_ids=[0])"), 12)
    names: dict[str, object] = {}
    exec(compile(tree, "<cell>", "exec"), names)
    assert names["device"] == "cuda:12"
    assert names["ids"] == {"device_ids": [12]}
