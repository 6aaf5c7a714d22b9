"""Gates and strengths from what a layer projects."""
