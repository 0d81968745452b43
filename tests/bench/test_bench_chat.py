"""The measures of chat run against a stand-in for the provider."""

from __future__ import annotations

import dataclasses

from bench import chat, measure

SMALL = dataclasses.replace(measure.QUICK, chat_rounds=1, chat_messages=20)


def test_the_first_token_is_compared_with_a_socket_to_the_provider() -> None:
    [figure] = chat.first_token(SMALL)

    assert figure.ours.median > 0
    assert figure.limit is not None
    assert figure.limit.median > 0
    assert figure.targets


def test_a_long_history_is_compared_with_a_short_one() -> None:
    [figure] = chat.history(SMALL)

    assert figure.ours.median > 0
    assert figure.ratio is not None
