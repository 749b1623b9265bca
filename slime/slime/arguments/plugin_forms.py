"""Forms of plugins that ask for their values by name, as guides write them: losses, reward models, episodes.

* A loss: ``compute_loss(policy_logits, reference_logits, rewards, advantages, config)``, with any of `LOSS_TENSORS`.
* A reward model: a class with ``score``, ``compute_reward`` or ``batch_compute_rewards``, or a function that builds one.
* An episode: ``async def play(agent_model, task_description)``, with one of `MODELS` and one of `TASKS`.

Guarantees: one rule reads a signature in a source file, for a dry run, and that of a loaded function. A plugin that mixes a
form with anything else is a `FormError`, which names the clause. Imports no torch and runs no plugin. The adapters are
`slime.algorithms.losses.named_values`, `slime.rollout.reward_plugin` and `slime.rollout.episode_plugin`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable

from slime.exceptions import PluginError

POLICY = ("policy_logits", "student_logprobs")
TEACHER = "teacher_logprobs"
LOSS_TENSORS = (*POLICY, "reference_logits", TEACHER, "rewards", "scalar_rewards", "advantages", "advantage_mask")
CONFIG = "config"

SINGLE_METHODS = ("score", "compute_reward")
BATCH_METHOD = "batch_compute_rewards"

CHECKPOINT_NAMES = ("checkpoint_path", "model_path", "prm_model_path")
SCORED = ("prompt", "response", "next_state")

MODELS = ("agent_model", "vision_model")
TASKS = ("task_description", "task")
TEACHER_OF_TEXTS = "teacher_augmentation_fn"

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class FormError(PluginError):
    """A plugin breaks a clause by its signature or its result.

    Attributes:
        clause: id of the clause, such as ``loss-1``.
        detail: what is wrong, and what to write.
    """

    def __init__(self, clause: str, detail: str) -> None:
        super().__init__(f"clause {clause}: {detail}")
        self.clause, self.detail = clause, detail

    def __reduce__(self):
        """Make the error picklable, so that Ray can transfer it."""
        return type(self), (self.clause, self.detail)


def signature_in_source(node: Function) -> inspect.Signature:
    """Return the signature of a function in a syntax tree; a default's value is not read."""
    arguments, kind = node.args, inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = [
        kind(
            argument.arg,
            kind.POSITIONAL_ONLY if place < len(arguments.posonlyargs) else kind.POSITIONAL_OR_KEYWORD,
            default=kind.empty if place < required else None,
        )
        for place, argument in enumerate(positional)
    ]
    if arguments.vararg:
        parameters.append(kind(arguments.vararg.arg, kind.VAR_POSITIONAL))
    parameters += [
        kind(argument.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parameters.append(kind(arguments.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(parameters)


def required_names(signature: inspect.Signature) -> list[str]:
    """Return the parameters that a caller must give."""
    return [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind not in _COLLECTING]


def loss_values(signature: inspect.Signature) -> tuple[str, ...] | None:
    """Return the parameters of a loss that asks for its values by name; None for a loss of the contract.

    Raises:
        FormError: it names some values and also requires something else, or names none of the policy.
    """
    names = tuple(p.name for p in signature.parameters.values() if p.kind not in _COLLECTING)
    if not set(names) & set(LOSS_TENSORS):
        return None
    _refuse_unnamed(signature, "loss-1", (*LOSS_TENSORS, CONFIG))
    if not set(names) & set(POLICY):
        raise FormError(
            "loss-1", f"its parameters {', '.join(names)} lack {' or '.join(POLICY)}, so the loss has no gradient"
        )
    return names


def check_loss_signature(signature: inspect.Signature) -> None:
    """Check that a loss is callable in one of its two forms.

    Raises:
        FormError: it is not; the message says what to write.
    """
    if loss_values(signature) is not None:
        return
    try:
        signature.bind(*[None] * 4)
    except TypeError as error:
        raise FormError(
            "loss-1",
            f"{signature} takes neither (args, batch, logits, sum_of_sample_mean) nor values by name "
            f"({', '.join((*LOSS_TENSORS, CONFIG))}): {error}",
        ) from error


def episode_values(signature: inspect.Signature) -> tuple[str, str] | None:
    """Return the names of the model and the task of an episode; None for a generate function of the contract.

    Raises:
        FormError: it requires something else, or its results are texts of a teacher.
    """
    names = signature.parameters
    if TEACHER_OF_TEXTS in names:
        raise FormError(
            "generate-1",
            f"{TEACHER_OF_TEXTS} gives a text, but a teacher is trained on by its log probabilities of the sampled tokens; "
            "write generate(args, sample, sampling_params), which sets sample.teacher_log_probs",
        )
    models, tasks = [name for name in MODELS if name in names], [name for name in TASKS if name in names]
    if not (models and tasks):
        return None
    _refuse_unnamed(signature, "generate-1", (models[0], tasks[0]))
    return models[0], tasks[0]


def _refuse_unnamed(signature: inspect.Signature, clause: str, known: Iterable[str]) -> None:
    known = tuple(known)
    positional = [p.name for p in signature.parameters.values() if p.kind == p.POSITIONAL_ONLY]
    if positional:
        raise FormError(clause, f"{', '.join(positional)} cannot be given by name; remove the / in its signature")
    unknown = [name for name in required_names(signature) if name not in known]
    if unknown:
        raise FormError(
            clause,
            f"nothing is known for its parameter {', '.join(unknown)}; give it a default, or use {', '.join(known)}",
        )


def reward_parameter(where: str, signature: inspect.Signature) -> str | None:
    """Return the parameter that a reward model is built with, None for nothing: one of `CHECKPOINT_NAMES`, or the configuration.

    Raises:
        FormError: it needs more than one value.
    """
    required = required_names(signature)
    if len(required) > 1:
        raise FormError(
            "reward-1",
            f"{where} needs {', '.join(required)} to be built, but it gets one value: checkpoint_path, or config with all "
            "arguments of the run; give the others a default",
        )
    return next(iter(required or [name for name in signature.parameters if name == CONFIG]), None)


def check_reward_method(where: str, name: str, signature: inspect.Signature) -> None:
    """Check that a method of a reward model requires at most what it gets.

    Raises:
        FormError: it requires more.
    """
    required = required_names(signature)
    if len(required) > len(SCORED):
        takes = "a list of dicts" if name == BATCH_METHOD else ", ".join(SCORED)
        raise FormError("reward-1", f"{where}: {name} requires {', '.join(required)}, but it gets {takes}")


def check_reward_class(where: str, node: ast.ClassDef) -> str | None:
    """Return the `reward_parameter` of a class in a syntax tree, after a check of its methods."""
    methods = {member.name: signature_in_source(member) for member in node.body if isinstance(member, Function)}
    own = {
        name: signature.replace(parameters=[*signature.parameters.values()][1:]) for name, signature in methods.items()
    }
    for name in (*SINGLE_METHODS, BATCH_METHOD):
        if name in own:
            check_reward_method(where, name, own[name])
    return reward_parameter(where, own["__init__"]) if "__init__" in own else None


def recognised(option: str, tree: ast.Module) -> list[str]:
    """Return the names in a source file that have a form of the plugin of ``option``."""
    if option == "custom_rm_path":
        return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and _scores(node)]
    words = {"custom_loss_function_path": POLICY, "custom_generate_function_path": (*MODELS, TEACHER_OF_TEXTS)}
    functions = [node for node in tree.body if isinstance(node, Function)]
    return [node.name for node in functions if set(signature_in_source(node).parameters) & set(words.get(option, ()))]


def _scores(node: ast.ClassDef) -> bool:
    methods = {member.name for member in node.body if isinstance(member, Function)}
    return bool(methods & {*SINGLE_METHODS, BATCH_METHOD})
