"""Write what a person needs to start a run and to reach it: its variables, a start script, and the files of the clients.

Facade: `openclaw-rl init`.
"""
