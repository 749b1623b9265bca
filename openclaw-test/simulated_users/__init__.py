"""The simulated users: YAML files in `built_in/`, or of your own; see `instructions/learning_figures.md`."""
