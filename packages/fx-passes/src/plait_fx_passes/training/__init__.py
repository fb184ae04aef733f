"""Forward and backward as functional ATen graphs, and the autograd node that runs them."""
