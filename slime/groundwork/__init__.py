"""What every package stands on and what knows none of them: command lines, files, processes, machine, messages."""
