"""The views of the window: what a browser, or a program by the JSON twins, sees of a run (`openclaw.gateway.window`).

`openclaw.window.views` reads, `openclaw.window.pages` renders, and ``python -m openclaw.window`` is the process that does both.
"""
