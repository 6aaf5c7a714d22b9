"""Attention by a softmax over keys."""
