"""What `run_eval.sh` asks a model, how replies are graded, and the report about them.

* ``case``: a problem, its grade, and what a suite implements
* ``talk``: one conversation with the model; ``degenerate``: replies that are broken, whatever they say
* ``conversation`` (with ``rules``), ``coding`` (with ``coding_*``), ``tool_use`` (with ``tool_worlds``), ``shell``,
  ``retention``: the suites; ``suites`` has them by name
* ``code_box``: the sandbox for Python that a model wrote
* ``run``: asks and grades everything; ``records``: the file of results, from which a run goes on
* ``figures``, ``report``, ``markdown``, ``plots``: what comes out
* ``served``: a server of our own for a checkpoint or a run; ``options``: the command line
"""
