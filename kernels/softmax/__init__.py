"""Attention by a softmax over keys, or by a sigmoid of each."""
