"""Triggers: predicates about calls, which measure the reach of the suite.

A trigger is a predicate such as "K = 64 and only the initial state is trained". A bug with that
trigger makes exactly those calls wrong. `grammar` lists the predicates of an op, `facts` describes
a call, `recording` runs the laws' cases once with zeros as results, and `planting` makes results
wrong and checks whether a law fails. No kernel is compiled, and nothing is computed.
"""
