"""The simulated users: YAML files in `built_in/`, or of your own; see `openclaw-test/README.md`."""
