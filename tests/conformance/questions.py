"""The tools of the conformance suites that ask their caller or work in the background.

The suites define names, keys and texts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from plexus import (
    Activation,
    Content,
    Context,
    Declined,
    Detached,
    Failed,
    Form,
    Roots,
    Sample,
    method,
    prompt,
)
from plexus.questions import Question

__all__ = ("Asking", "Rounds", "Tasks")


def fields(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a form in which every field is required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
NAME = fields(name=TEXT)

DEFAULTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}


def titled(*titles: str) -> list[dict[str, str]]:
    """Return values with titles in the form of newer revisions."""
    return [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, 1)]


OPTIONS = ["option1", "option2", "option3"]
ENUMS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": OPTIONS},
        "titledSingle": {
            "type": "string",
            "oneOf": titled("First Option", "Second Option", "Third Option"),
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": titled("First Choice", "Second Choice", "Third Choice")},
        },
    },
}


async def outcome(ctx: Context, question: Question[dict[str, Any]]) -> str:
    """Return the outcome of a question in the format of the suites."""
    try:
        answer = await ctx.ask(question)
    except Declined:
        return "action=decline"
    return f"action=accept, content={json.dumps(answer)}"


class Asking(Activation):
    """Methods that ask the caller while they run."""

    namespace = "asking"
    version = "1.0.0"

    @method
    async def test_sampling(self, prompt: str, *, ctx: Context) -> str:
        """Ask the caller's model.

        Args:
            prompt: The prompt for the model.
        """
        answer = await ctx.ask(Sample(prompt, max_tokens=100))
        return f"LLM response: {answer.text}"

    @method
    async def test_elicitation(self, message: str, *, ctx: Context) -> str:
        """Ask for a name and an address.

        Args:
            message: The message for the user.
        """
        username = {"type": "string", "description": "User's response"}
        email = {"type": "string", "description": "User's email address"}
        form = Form(message, fields(username=username, email=email))
        return f"User response: {await outcome(ctx, form)}"

    @method
    async def test_elicitation_sep1034_defaults(self, *, ctx: Context) -> str:
        """Ask with a default for every kind of field."""
        form = Form("Please review these values", DEFAULTS)
        return f"Elicitation completed: {await outcome(ctx, form)}"

    @method
    async def test_elicitation_sep1330_enums(self, *, ctx: Context) -> str:
        """Ask for choices in all five schema forms."""
        form = Form("Please choose", ENUMS)
        return f"Elicitation completed: {await outcome(ctx, form)}"

    @method
    async def test_streaming_elicitation(self, *, ctx: Context) -> str:
        """Ask for a name."""
        return f"Elicitation completed: {await outcome(ctx, Form('What is your name?', NAME))}"

    @method
    async def test_missing_capability(self, *, ctx: Context) -> str:
        """Require the caller's model."""
        answer = await ctx.ask(Sample("Say hello", max_tokens=20))
        return answer.text


class Rounds(Activation):
    """Questions with keys that the caller sees."""

    namespace = "rounds"
    version = "1.0.0"

    @method
    async def test_input_required_result_elicitation(self, *, ctx: Context) -> str:
        """Ask for a name, and greet."""
        answer = await ctx.ask(Form("What is your name?", NAME), key="user_name")
        return f"Hello, {answer['name']}!"

    @method
    async def test_input_required_result_sampling(self, *, ctx: Context) -> str:
        """Ask the caller's model for a capital."""
        question = Sample("What is the capital of France?", max_tokens=100)
        answer = await ctx.ask(question, key="capital_question")
        return answer.text

    @method
    async def test_input_required_result_list_roots(self, *, ctx: Context) -> str:
        """Ask for the caller's roots."""
        roots = await ctx.ask(Roots(), key="client_roots")
        return "Roots: " + ", ".join(root.uri for root in roots)

    @method
    async def test_input_required_result_request_state(self, *, ctx: Context) -> str:
        """Ask for a confirmation, and resume from the request state."""
        await ctx.ask(Form("Please confirm", fields(ok={"type": "boolean"})), key="confirm")
        return "state-ok"

    @method
    async def test_input_required_result_tampered_state(self, *, ctx: Context) -> str:
        """Ask for a confirmation, and reject a modified request state."""
        await ctx.ask(Form("Please confirm", fields(ok={"type": "boolean"})), key="confirm")
        return "confirmed"

    @method
    async def test_input_required_result_multiple_inputs(self, *, ctx: Context) -> str:
        """Ask three questions together."""
        answers = await ctx.ask_all(
            {
                "user_name": Form("What is your name?", NAME),
                "greeting": Sample("Generate a greeting", max_tokens=50),
                "client_roots": Roots(),
            }
        )
        name, greeting = answers["user_name"]["name"], answers["greeting"].text
        return f"{greeting} {name} has {len(answers['client_roots'])} roots."

    @method
    async def test_input_required_result_multi_round(self, *, ctx: Context) -> str:
        """Ask two questions one after the other."""
        first = await ctx.ask(Form("Step 1: What is your name?", NAME), key="step1")
        color = Form("Step 2: What is your favorite color?", fields(color=TEXT))
        second = await ctx.ask(color, key="step2")
        return f"{first['name']} likes {second['color']}."

    @method
    async def test_input_required_result_capabilities(self, *, ctx: Context) -> str:
        """Ask only questions that the caller supports."""
        questions: dict[str, Question[Any]] = {
            "user_name": Form("What is your name?", NAME),
            "greeting": Sample("Generate a greeting", max_tokens=50),
            "client_roots": Roots(),
        }
        possible = {key: each for key, each in questions.items() if ctx.can_ask(each.kind)}
        answers = await ctx.ask_all(possible)
        return f"Answered: {', '.join(answers)}"

    @prompt
    async def test_input_required_result_prompt(self, *, ctx: Context) -> str:
        """A prompt about a context that it asks for."""
        form = Form("What context should the prompt use?", fields(context=TEXT))
        answer = await ctx.ask(form, key="user_context")
        return f"Use this context: {answer['context']}"


class Tasks(Activation):
    """Methods for tasks."""

    namespace = "tasks"
    version = "1.0.0"

    @method(background="never")
    async def greet(self, name: str) -> str:
        """Greet immediately.

        Args:
            name: The name to greet.
        """
        return f"Hello, {name}!"

    @method
    async def slow_compute(
        self, seconds: float = 0, label: str = "work"
    ) -> AsyncIterator[Detached | Content]:
        """Wait in the background.

        Args:
            seconds: How long to wait.
            label: The label of the result.
        """
        yield Detached()
        await asyncio.sleep(seconds)
        yield Content(text=f"{label} took {seconds:g} s")

    @method(background="required")
    async def failing_job(self) -> str:
        """Fail after a second."""
        await asyncio.sleep(1)
        raise Failed("This job always fails")

    @method(background="required")
    async def protocol_error_job(self) -> str:
        """Raise an unexpected exception."""
        raise RuntimeError("this is what a defect looks like")

    @method
    async def confirm_delete(
        self, filename: str, *, ctx: Context
    ) -> AsyncIterator[Detached | Content]:
        """Ask in the background before a file would be deleted.

        Args:
            filename: The name of the file.
        """
        yield Detached()
        form = Form(f"Delete {filename}?", fields(confirm={"type": "boolean"}))
        answer = await ctx.ask(form)
        yield Content(text=f"{filename} was {'deleted' if answer['confirm'] else 'kept'}")

    @method
    async def multi_input(self, *, ctx: Context) -> AsyncIterator[Detached | Content]:
        """Ask two questions together, in the background."""
        yield Detached()
        answers = await ctx.ask_all(
            {"first": Form("Your first name?", NAME), "second": Form("Your second name?", NAME)}
        )
        names = " ".join(answer["name"] for answer in answers.values())
        yield Content(text=f"Hello, {names}!")

    @method
    async def test_tool_with_task(self, *, ctx: Context) -> AsyncIterator[Detached | Content]:
        """Ask for a name, then continue in the background."""
        answer = await ctx.ask(Form("What is your name?", NAME), key="user_name")
        yield Detached()
        await asyncio.sleep(0.2)
        yield Content(text=f"Hello, {answer['name']}!")
