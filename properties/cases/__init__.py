"""What is drawn: a case as data, how cases are drawn, and the tensors that they stand for."""
