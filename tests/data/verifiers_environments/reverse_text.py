"""A single-turn environment of `verifiers`: write a text backwards."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class ReverseTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def backwards(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class ReverseTaskset(vf.Taskset[ReverseTask, vf.TasksetConfig]):
    def load(self):
        return [ReverseTask(Data(prompt="Reverse: abc", answer="cba"), self.config.task)]


__all__ = ["ReverseTaskset"]
