"""What a tool does; one module per kind.

* ``interface``: what a tool is, and the episode that it acts in.
* ``builtin``: calculator, store and tables, which compute in this process and run nothing of the agent's.
* ``sql``, ``code``: statements and programs of the agent's, in a sandbox.
* ``python``, ``http``, ``mcp``: functions, web services and MCP servers that ``TOOLS_CONFIG`` names.
"""
