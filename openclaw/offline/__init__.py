"""Training from logs: reads them, queues their turns in a run's ledger, and replays a finished run.

Guarantees: the run that trains them is the ordinary one: one judge, one method, one trainer. Room of openclaw: imports the
rooms below it, and is imported by the launcher and the commands.
"""
