"""PyTorch without its compiler, for programs of tests that compile nothing."""

LIGHT = """
import sys, types
compiler = types.SimpleNamespace(disable=lambda function, *_, **__: function, graph_break=lambda: None)
sys.modules["torch._dynamo"] = compiler
"""
"""A program that begins with this takes little more than half of the time to start: without it, its first optimizer
loads all of torch.compile, for almost as long as PyTorch itself. What is seen of programs with the real one is shown by
test_inject and test_torch in tests/real."""
