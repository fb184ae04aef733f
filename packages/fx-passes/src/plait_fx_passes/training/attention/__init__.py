"""Attention whose backward computes scores again, rather than keep a matrix of them.

In a joint graph attention is a product of queries and keys, what is computed of it pair by pair, a
softmax, and a product of its weights and values; the backward reads the weights. Here it gets them
from the scores, which it computes again, and the logarithm of the sum of each row's exponentials,
one number for a row or two, which the forward saves (`row_sums.py`). What rows of the softmax's
gradient are less than is the product of the result and its gradient, rather than that of weights
and theirs (Dao et al., *FlashAttention*, 2022). All else is as differentiated: the gradient of a
score function is what autograd makes of it.

Schedulers find such products and compute them block by block, and beside them the sums over pairs
that are the gradients of what a score function captures (`pair_sums.py`). Where something else
reads what is computed for all pairs, nothing is gained.
"""
