"""A multi-turn environment of `verifiers`: guess a word in three turns; the environment answers each guess."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class GuessTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self):
        for number, word in enumerate(("apple", "bread")):
            data = Data(name=f"word-{number}", prompt="Guess the word.", system_prompt="One word only.", answer=word)
            yield GuessTask(data, self.config.task)


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        print("the environment prints")
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for left in (2, 1):
                if segment.terminated or segment.last_reply.strip() == task.data.answer:
                    return
                hint = task.data.answer[: 3 - left]
                segment = await interaction.turn(f"No. It begins with {hint!r}; {left} left.")


__all__ = ["GuessEnv", "GuessTaskset"]
