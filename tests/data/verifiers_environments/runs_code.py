"""An environment of `verifiers` whose reward runs a command, so it needs a sandbox of its own."""

import verifiers.v1 as vf


class CodeTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def runs(self, trace, runtime) -> float:
        return float((await runtime.run(["true"], {})).exit_code == 0)


class CodeTaskset(vf.Taskset[CodeTask, vf.TasksetConfig]):
    def load(self):
        return [CodeTask(vf.TaskData(prompt="Write a program."), self.config.task)]


__all__ = ["CodeTaskset"]
