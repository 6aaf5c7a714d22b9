"""Triggers: the reach of the suite, measured by predicates about calls.

A trigger is a predicate, such as "K = 64 and the initial state alone is trained", and a call is
wrong exactly when it holds. `grammar` lists the predicates of an op, `facts` says what is true of a
call, `recording` runs the laws' cases once with the oracle as implementation, and `planting` makes
results wrong and asks the laws about them. No kernel is compiled.
"""
