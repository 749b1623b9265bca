"""Flags, and hooks of which only the call is checked that break one clause of the contract each; the name says which."""

from __future__ import annotations


def arguments_1():
    return None


def arguments_2(parser):
    parser.add_argument("--lr", type=float)


def arguments_3(parser):
    parser.add_argument("--my-server", required=True)


def model_provider_1(pre_process):
    return None


def megatron_init_1():
    return None


def before_log_prob_1(args, model):
    return None


def before_train_step_1(args, model, optimizer):
    return None
