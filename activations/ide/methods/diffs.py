"""Methods that review changes: a program asks, people answer in any view."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le, Len

from activations.ide.comments import MAX_COMMENTS, list_stored, store_comments
from activations.ide.diff import DIFF_BYTES, Diff, with_comments
from activations.ide.events import Comment, DiffClosed, DiffInfo, DiffReview, Outcome
from activations.ide.methods.base import EditorActivation
from activations.ide.state import now_ms
from activations.ide.text_diff import compare
from activations.ide.workspace import check_size
from plexus import Context, Declined, InvalidParams, NotFound, Principal, method
from plexus.caller_connection import CallerConnection
from plexus.diff_question import REASON_CHARS, DiffAnswer, DiffQuestion
from plexus.errors import Busy, PlexusError
from plexus.events import QuestionAnswered
from plexus.text import printable_name

__all__ = ("DiffMethods",)

#: Seconds that a change waits for an answer: people come back after a weekend.
WAIT_S: Final = 7 * 24 * 3600.0
#: Maximum characters of the title of a diff, and of a comment.
TAB_CHARS: Final = 500
COMMENT_CHARS: Final = 4000
#: How many diffs with comments are listed.
LISTED: Final = 100


class DiffMethods(EditorActivation):
    """How changes are proposed and answered."""

    @method(
        title="Review a change",
        deadline_s=None,
        restart="never",
        destructive=False,
        open_world=False,
        on_disconnect="cancel",
    )
    async def open_diff(
        self,
        old_file_path: str,
        new_file_contents: str,
        new_file_path: str | None = None,
        tab_name: str | None = None,
        *,
        ctx: Context,
    ) -> DiffReview:
        """Show a change of a file to people and wait until one of them has answered.

        Returns the decision and the final text, which may be edited. Never writes the file.

        Args:
            old_file_path: File in the workspace. It need not exist.
            new_file_contents: The proposed content.
            new_file_path: Where the content will be written. Default: the same file.
            tab_name: Title, by which `ide.close_tab` withdraws the question.
        """
        check_size(new_file_contents, DIFF_BYTES, "new_file_contents")
        diff = await self._new_diff(
            old_file_path, new_file_path or old_file_path, new_file_contents, tab_name, ctx
        )
        self._withdraw(diff.tab_name, diff.connection, ctx.principal)
        self.state.add_diff(diff)
        outcome: Outcome = "closed"
        review = DiffReview(diff.id, diff.path, outcome)
        try:
            review = await self._ask(diff, ctx)
        finally:
            closed = DiffClosed(
                diff.id, diff.path, review.outcome, review.reason, review.by, now_ms()
            )
            self.state.close_diff(diff, closed)
            if diff.comments:
                # Not here: the run may be cancelled. The outcome is stored with the comments.
                self.start_task(self._store(ctx, diff))
        return review

    async def _new_diff(
        self, old: str, new: str, contents: str, tab_name: str | None, ctx: Context
    ) -> Diff:
        path = await self.state.resolve(new)
        base = path if old == new else await self.state.resolve(old)
        if not path:
            raise InvalidParams.at("new_file_path", "is the workspace itself")
        try:
            text = (await asyncio.to_thread(self.workspace.read, base, DIFF_BYTES)).text
        except NotFound:
            text = None
        changes = await asyncio.to_thread(compare, text or "", contents)
        client = self.client_of(ctx)
        return Diff(
            ctx.outer_run_id,
            ctx.principal.name,
            path,
            printable_name(tab_name or "", TAB_CHARS) or path,
            (text, contents),
            changes,
            now_ms(),
            ctx.connection,
            (ctx.client, None if client is None else client.number),
        )

    async def _ask(self, diff: Diff, ctx: Context) -> DiffReview:
        """Ask for a decision until it is made or no longer needed."""
        verb = "Create" if diff.is_new else "Change"
        counts = f"+{diff.changes.added} -{diff.changes.removed}"
        question = DiffQuestion(
            f"{verb} {diff.path} ({counts})?", diff.details(), len(diff.changes.hunks), DIFF_BYTES
        )
        loop = asyncio.get_running_loop()
        asked = loop.create_task(ctx.ask(question, timeout_s=WAIT_S, key=f"diff-{diff.id}"))
        loop.call_soon(self._on_asked, diff, ctx)
        withdrawn = loop.create_task(diff.withdrawn.wait())
        try:
            await asyncio.wait((asked, withdrawn), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                return DiffReview(diff.id, diff.path, "closed")
            answer = _answer_of(asked, question)
        finally:
            for task in (asked, withdrawn):
                task.cancel()
            await asyncio.wait((asked, withdrawn))
        by = self._answered_by(diff, ctx)
        if not answer.accept:
            reason = with_comments(answer.reason, diff.comments)
            return DiffReview(diff.id, diff.path, "rejected", None, reason, by)
        text = diff.final_text(answer)
        outcome: Outcome = "accepted" if text == diff.new_text else "edited"
        return DiffReview(diff.id, diff.path, outcome, text, None, by)

    def _on_asked(self, diff: Diff, ctx: Context) -> None:
        """Note the number of the question, and show the diff to the watchers."""
        with suppress(NotFound):
            run = self.plexus.runs.find(diff.run, ctx.principal)
            for request, asked in (run.questions or {}).items():
                if (asked.event.details or {}).get("diff") == diff.id:
                    diff.request = request
                    self.state.changes.notify(diff.info(), diff.principal)

    def _answered_by(self, diff: Diff, ctx: Context) -> str | None:
        """Return the client that answered, as the record of the run has it."""
        run = self.plexus.runs.find(diff.run, ctx.principal)
        answers = (each for each in reversed(run.log.events) if isinstance(each, QuestionAnswered))
        return next((each.by for each in answers if each.request == diff.request), None)

    def _withdraw(
        self, tab_name: str | None, connection: CallerConnection | None, principal: Principal
    ) -> int:
        """Close the diffs that a connection has asked for; return their number.

        `tab_name` selects those with that title.
        """
        found = [
            each
            for each in self.state.waiting(principal.name)
            if each.connection is connection and tab_name in (None, each.tab_name)
        ]
        for each in found:
            each.withdrawn.set()
        return len(found)

    @method(title="Close a proposed change", destructive=False, open_world=False)
    async def close_tab(self, tab_name: str, *, ctx: Context) -> bool:
        """Withdraw a change that this connection has proposed. Returns whether it was waiting.

        Args:
            tab_name: Title of the change.
        """
        name = printable_name(tab_name, TAB_CHARS)
        return self._withdraw(name or tab_name, ctx.connection, ctx.principal) > 0

    @method(title="Close all proposed changes", destructive=False, open_world=False)
    async def close_all_diff_tabs(self, *, ctx: Context) -> int:
        """Withdraw all changes that this connection has proposed. Returns their number."""
        return self._withdraw(None, ctx.connection, ctx.principal)

    # --- people -------------------------------------------------------------------------------

    @method(title="List changes to review", read_only=True, open_world=False)
    async def diffs(self, *, principal: Principal) -> list[DiffInfo]:
        """List the changes that wait for an answer, oldest first."""
        return [each.info() for each in self.state.waiting(principal.name)]

    @method(title="Show a change", read_only=True, open_world=False, name="diff")
    async def show_diff(self, diff: str, *, principal: Principal) -> dict[str, Any]:
        """Return both texts of a change, its hunks and its comments, also after the answer."""
        found = self.state.find_diff(diff, principal.name, answered=True)
        return {
            "diff": found.info(),
            "old_text": found.old_text,
            "new_text": found.new_text,
            "eol": "\r\n" if "\r\n" in (found.old_text or found.new_text) else "\n",
            "hunks": [
                {"hunk": number} | hunk._asdict() for number, hunk in enumerate(found.changes.hunks)
            ],
            "comments": found.comments,
            "answered": found.closed,
        }

    @method(title="Answer a change", destructive=False, open_world=False, needs_person=True)
    async def answer_diff(
        self,
        diff: str,
        accept: bool,
        text: str | None = None,
        hunks: list[int] | None = None,
        reason: Annotated[str, Len(0, REASON_CHARS)] | None = None,
        *,
        ctx: Context,
    ) -> DiffClosed:
        """Accept or reject a change. The first answer counts.

        Args:
            diff: Number of the change.
            accept: true to accept, false to reject.
            text: With accept: the final text, if it was edited.
            hunks: With accept: the accepted hunks, by number from 0. Default: all.
            reason: With reject: the reason, which the program receives.
        """
        found = self.state.find_diff(diff, ctx.principal.name)
        run = self.plexus.runs.find(found.run, ctx.principal)
        self.plexus.check_control(run, ctx.principal)
        answer = {
            "decision": "accept" if accept else "reject",
            "text": text,
            "hunks": hunks,
            "reason": reason,
        }
        run.answer(found.request, {k: v for k, v in answer.items() if v is not None}, ctx.client)
        outcome: Outcome = "rejected"
        if accept:
            final = found.final_text(
                DiffAnswer(True, text, None if hunks is None else tuple(hunks))
            )
            outcome = "accepted" if final == found.new_text else "edited"
        return DiffClosed(found.id, found.path, outcome, reason, ctx.client, now_ms())

    # --- comments -----------------------------------------------------------------------------

    @method(title="Comment on a change", destructive=False, open_world=False)
    async def comment(
        self,
        diff: str,
        line: Annotated[int, Ge(0), Le(2**31)],
        text: Annotated[str, Len(1, COMMENT_CHARS)],
        side: Literal["new", "old"] = "new",
        comment: str | None = None,
        *,
        ctx: Context,
    ) -> Comment:
        """Add a comment to a line of a change, or replace one. It is stored.

        The program receives the comments with a rejection.

        Args:
            diff: Number of the change.
            line: Line, from 0.
            text: The comment.
            side: The text that the line is in.
            comment: Id of the comment to replace.
        """
        found = self.state.find_diff(diff, ctx.principal.name, answered=True)
        number = secrets.token_hex(6) if comment is None else comment
        new = Comment(number, side, line, text, ctx.client, now_ms())
        at = next((i for i, each in enumerate(found.comments) if each.comment == number), None)
        if at is not None:
            found.comments[at] = new
        elif comment is not None:
            raise NotFound(f"The change has no comment {comment[:100]!r}.")
        elif len(found.comments) >= MAX_COMMENTS:
            raise Busy(
                f"A change has at most {MAX_COMMENTS} comments.", data={"limit": MAX_COMMENTS}
            )
        else:
            found.comments.append(new)
        await self._on_comments(found, ctx)
        return new

    @method(title="Delete a comment", destructive=True, open_world=False)
    async def uncomment(self, diff: str, comment: str, *, ctx: Context) -> bool:
        """Delete a comment of a change. Returns whether it existed."""
        found = self.state.find_diff(diff, ctx.principal.name, answered=True)
        remaining = [each for each in found.comments if each.comment != comment]
        existed = len(remaining) < len(found.comments)
        found.comments = remaining
        if existed:
            await self._on_comments(found, ctx)
        return existed

    @method(title="List comments on changes", read_only=True, open_world=False)
    async def diff_comments(self, path: str | None = None, *, ctx: Context) -> list[dict[str, Any]]:
        """List the stored comments on changes, newest change first.

        Args:
            path: Only changes of this file.
        """
        name = None if path is None else await self.state.resolve(path)
        return await list_stored(ctx.storage, self.workspace.folder, name, LISTED)

    async def _on_comments(self, diff: Diff, ctx: Context) -> None:
        if diff.closed is None:
            self.state.changes.notify(diff.info(), diff.principal)
        await self._store(ctx, diff)

    async def _store(self, ctx: Context, diff: Diff) -> None:
        with suppress(PlexusError):  # without storage they last as long as the server
            await store_comments(ctx.storage, self.workspace.folder, diff)


def _answer_of(asked: asyncio.Task[DiffAnswer], question: DiffQuestion) -> DiffAnswer:
    """Return the answer. A question that was declined is a rejection, maybe with a reason."""
    try:
        return asked.result()
    except Declined as error:
        reason = error.message.removeprefix("declined: ")
        return DiffAnswer(False, reason=None if reason == question.message else reason)
