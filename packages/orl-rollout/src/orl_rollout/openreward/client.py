# pyright: reportMissingTypeStubs=false
"""The client of OpenReward, one for each event loop, with its connections and environments.

The platform's key goes to the platform alone (law L6): an environment with its own `base_url` gets an empty key unless
it sets `send_api_key`. Requests always name the variant, because without one they are redirected. The SDK's client is
not used: it gives every server the key of the process environment, follows redirects with it, repeats calls of tools,
reads answers of any size, and leaves a session open whose creation fails (docs/how-it-works.md).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import structs
from orl_core.config import EnvironmentConfig, RunConfig
from orl_core.errors import ConfigError, SessionError, SessionTimeout, cut
from orl_core.task import Task

from orl_rollout.edge.http import HttpClient
from orl_rollout.edge.retry import Waiting, retried
from orl_rollout.edge.secrets import api_key, resolve_secrets, unset_secrets
from orl_rollout.logs import Sparing, logger_of, say
from orl_rollout.openreward.environment import (
    LISTING_SECONDS,
    RemoteEnvironment,
    TaskListing,
    list_served,
)
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.open_sessions import OpenSessions
from orl_rollout.openreward.platform import required_secrets, sdk_secrets, session_url, usual_hosts
from orl_rollout.openreward.session import OpenRewardSession, RemoteSession, SessionOptions, reads_secrets_in_body
from orl_rollout.openreward.transport import FAULTS, Channel, Endpoint

logger = logger_of("orl")

CLOSE_SECONDS = 10.0  # at most, for a remote session's teardown; an environment's `call_timeout` may be shorter
# Seconds that an idle connection is kept. A call on a connection that its server closes cannot be repeated. uvicorn
# closes after 5 s, and in a burst it may read a call seconds late. The platform keeps connections for a minute.
IDLE_SECONDS = 1.0
PLATFORM_IDLE_SECONDS = 15.0
AWAY_SECONDS = 10.0  # between two sessions for a server that takes no request, while others serve its environments
CONTACT_SECONDS = 30.0  # for the first answer of a server of one's own, which needs no environment for it
LEFT_AT_ONCE, LEFT_SECONDS = 64, 60.0  # in closing what a killed process left open
NAMED = 20  # environments of a server that an error names


class OpenRewardClient:
    """Sessions and listings of the configured environments. Use it by `async with`, on one event loop.

    An environment with several servers gets sessions from each in turn. A session stays with its server. One that takes
    no request is left out until it does. A listing comes from one that answers.

    `open_sessions` lists the sessions. On entry, those that dead processes of this run left open are closed.
    """

    def __init__(self, config: RunConfig, open_sessions: OpenSessions | None = None) -> None:
        self.config = config
        self._open_sessions = open_sessions
        self._http: dict[str, HttpClient] = {}  # by address; the latest to be chosen is the last
        self._options: dict[str, SessionOptions] = {}
        self._variants: dict[tuple[str, str], str] = {}  # by environment and address
        self._warnings = Sparing(logger)
        self._complete: set[str] = set()  # environments whose secrets the platform has been asked for
        self._asking = asyncio.Lock()
        self._closed = False
        self._body_secrets: dict[str, bool] = {}  # by address

    async def __aenter__(self) -> Self:
        if self._open_sessions is not None:
            try:
                for path, sessions in await asyncio.to_thread(self._open_sessions.left):
                    await self._close_left(path, sessions)
            except BaseException:
                await self.__aexit__()
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closed = True  # a rollout that still runs opens no connection that nobody would close
        while self._http:
            _, http = self._http.popitem()
            await http.close()

    def session(self, task: Task) -> OpenRewardSession:
        """Make a session for `task`, not yet open.

        Raises:
            ConfigError: the task's environment is not configured, or a secret of it is unusable.
        """
        if task.env_name not in self._options:
            self._options[task.env_name] = self._make_options(task.env_name)
        return OpenRewardSession(self._options[task.env_name], self._reach)

    async def environment(self, name: str, *, served: str = "") -> RemoteEnvironment:
        """Return the environment `name` of the configuration. `served` is its name on the server, if that is known.

        Raises:
            ConfigError: it is not configured, or the platform's key or a secret that it needs is missing.
            SessionError: the server at its `base_url` does not serve it.
        """
        environment = self.config.environment(name)
        if environment.base_url is None and not api_key():
            raise ConfigError(f"environment `{name}` is served by OpenReward: set OPENREWARD_API_KEY, or a `base_url`")
        if environment.base_url is None and name not in self._complete:
            await self._check_secrets(name)
        known = served and (environment.variant or served.lower())

        async def reach() -> RemoteEnvironment:
            http = self._next(environment)
            variant = known or await self._served_by(name, environment, http)
            endpoint = Endpoint(http=http, key=_key(environment), deployment=name, variant=variant)
            return RemoteEnvironment(endpoint=endpoint)

        others = Waiting(pauses=[0.0] * (len(environment.addresses) - 1))
        return await retried(reach, (*FAULTS, SessionTimeout), waiting=others)

    async def _reach(self, task: Task) -> Endpoint:
        endpoint = (await self.environment(task.env_name, served=task.environment_name)).endpoint
        environment = self.config.environment(task.env_name)
        if environment.base_url is None or not (_key(environment) or resolve_secrets(self.config, task.env_name)):
            return endpoint
        if endpoint.http.url not in self._body_secrets:
            self._body_secrets[endpoint.http.url] = await reads_secrets_in_body(Channel(endpoint.http))
        return structs.replace(endpoint, body_secrets=self._body_secrets[endpoint.http.url])

    async def _check_secrets(self, name: str) -> None:
        """Refuse an unset secret that the platform says is needed. Others are left out, and all if it does not say."""
        async with self._asking:
            if name in self._complete:
                return
            unset = unset_secrets(self.config, name)
            with suppress(SessionError):
                needed = {secret.lower() for secret in await required_secrets(name)} if unset else set[str]()
                for entry in unset:
                    if entry.name.lower() in needed:
                        raise ConfigError(
                            f"environment `{name}` needs the secret `{entry.name}`: set the variable "
                            f"{' or '.join(entry.variables)}"
                        )
            self._complete.add(name)

    async def _served_by(self, name: str, environment: EnvironmentConfig, http: HttpClient) -> str:
        """Return the variant for requests: the configured one, or on a self-hosted server that of the name."""
        if environment.base_url is None:
            return environment.variant or ""
        if (name, http.url) not in self._variants:
            wanted = (environment.variant or name.partition("/")[2]).lower()
            try:
                async with asyncio.timeout(CONTACT_SECONDS):
                    served = await list_served(Channel(http))
            except TimeoutError:
                raise SessionTimeout(
                    f"the server at {http.url} takes requests but answers none within "
                    f"{CONTACT_SECONDS:g} s: restart it, or correct `base_url` if it is the address of another server"
                ) from None
            if wanted not in served:
                raise SessionError(
                    f"the server at {http.url} has no environment `{wanted}`: name one of "
                    f"{', '.join(served[:NAMED])} as `variant` of `{name}`"
                )
            self._variants[name, http.url] = wanted
        return self._variants[name, http.url]

    async def _close_left(self, path: Path, sessions: Mapping[str, str]) -> None:
        """Close `sessions`, the environment of each, and remove their list `path` if all are closed.

        Those of environments that are not configured are left: only an environment's own server gets its key.
        """
        room = asyncio.Semaphore(LEFT_AT_ONCE)

        async def close(sid: str, name: str, http: HttpClient) -> None:
            key = _key(self.config.environment(name))
            endpoint = Endpoint(http=http, key=key, deployment=name, variant="")
            async with room:
                with as_session_error(f"closing a session of {name} that a killed process left"):
                    await RemoteSession(endpoint, sid=sid).delete(CLOSE_SECONDS)

        mine = {sid: name for sid, name in sessions.items() if name in self.config.environments}
        servers = {name: self._servers(self.config.environment(name)) for name in mine.values()}
        closing = [close(sid, name, http) for sid, name in mine.items() for http in servers[name]]
        try:
            async with asyncio.timeout(LEFT_SECONDS):
                ends = await asyncio.gather(*closing, return_exceptions=True)
        except TimeoutError:
            ends = [SessionTimeout(f"sessions that a killed process left are not closed within {LEFT_SECONDS:g} s")]
        if faults := [end for end in ends if isinstance(end, BaseException)]:
            logger.warning("%s (%d such). %s lists them for the next start", faults[0], len(faults), path)
            return
        await asyncio.to_thread(path.unlink, missing_ok=True)
        if mine:
            say(f"closed {len(mine)} sessions that a killed process of this run left open")

    def _next(self, environment: EnvironmentConfig) -> HttpClient:
        """Return the server whose turn it is. Those that are away are left out, unless all are.

        Now and then one session finds out whether such a server is back.
        """
        now = time.monotonic()
        away = {http: now < http.away_at + AWAY_SECONDS for http in self._servers(environment)}
        chosen = min(away, key=lambda http: away[http])
        self._http[chosen.url] = self._http.pop(chosen.url)
        if chosen.away_at > -math.inf:
            chosen.away_at = now
        for http, gone in away.items():
            if gone > away[chosen]:
                self._warnings.warn(f"the server at {http.url} is away: the others get its sessions", http.url)
        return chosen

    def _servers(self, environment: EnvironmentConfig) -> list[HttpClient]:
        """Return the servers of `environment`, the latest to be chosen last."""
        if self._closed:
            raise SessionError("the client of OpenReward is closed: use it inside `async with`")
        urls, idle = _urls(environment), IDLE_SECONDS if environment.addresses else PLATFORM_IDLE_SECONDS
        for url in urls:
            if url not in self._http:
                self._http[url] = HttpClient(url, idle=idle)
        return [http for url, http in self._http.items() if url in urls]

    def _make_options(self, name: str) -> SessionOptions:
        """Return the options of an environment. A variable of its container that is null is the secret of that name."""
        environment, secrets = self.config.environment(name), resolve_secrets(self.config, name)
        call_timeout = environment.call_timeout or self.config.rollout.call_timeout
        return SessionOptions(
            name=name,
            secrets=self._secrets_header(name, environment),
            toolset=environment.toolset,
            overrides={
                variable: (secrets[variable].value or "") if value is None else value
                for variable, value in environment.env_overrides.items()
            },
            close_seconds=min(call_timeout, CLOSE_SECONDS),
            open_sessions=self._open_sessions,
        )

    def _secrets_header(self, name: str, environment: EnvironmentConfig) -> str:
        """Return the header with the environment's secrets, each with the hosts that may receive it.

        It also holds the platform's key, which toolsets need, or an empty one if the server may not see it.
        """
        secrets: dict[str, str | tuple[str, list[str]]] = {}
        for secret, entry in resolve_secrets(self.config, name).items():
            value = entry.value or ""
            hosts = list(entry.hosts) or usual_hosts(secret)
            if not hosts and environment.base_url is None:
                raise ConfigError(
                    f"environment `{name}`: OpenReward releases the secret `{secret}` to named hosts only: write "
                    f"`{secret}: {{value: null, hosts: [api.example.com]}}`"
                )
            if value == api_key() != _key(environment):
                raise ConfigError(
                    f"environment `{name}`: the secret `{secret}` is OpenReward's key: set `send_api_key`"
                )
            secrets[secret] = (value, hosts)
        travelling = sdk_secrets().augment_secrets_with_api_key(secrets, _key(environment), _urls(environment)[0], None)
        return sdk_secrets().build_secrets_header(travelling or {})


async def open_listing(client: OpenRewardClient, env_name: str, split: str) -> TaskListing:
    """Ask how many tasks a split has.

    Raises:
        ConfigError: the environment has no such split, or is not configured.
        SessionError: the server cannot be reached, or does not serve the environment.
    """
    with as_session_error(f"listing the tasks of {env_name}"):
        async with asyncio.timeout(LISTING_SECONDS):
            remote = await client.environment(env_name)
            splits = await remote.list_splits()
            if split not in splits:
                known = cut(", ".join(splits), 500) or "none"
                raise ConfigError(f"environment `{env_name}` has no split `{split}`; its splits are: {known}")
            size = await remote.num_tasks(split)
            if size:  # what has no task need not have a first one
                await remote.get_task_range(split, 0, 1)
    return TaskListing(env_name=env_name, split=split, size=size, remote=remote)


def _urls(environment: EnvironmentConfig) -> tuple[str, ...]:
    return environment.addresses or (session_url().rstrip("/"),)


def _key(environment: EnvironmentConfig) -> str:
    """Return the key that this environment's server may see."""
    return api_key() if environment.base_url is None or environment.send_api_key else ""
