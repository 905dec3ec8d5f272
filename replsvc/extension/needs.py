"""What extensions need of a session's kernel (`requires`, `network`), against what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replsvc.extension.issues import shown


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session's code will find.

    `python` says whose packages these are, for people; `packages` is distribution to version;
    `network` is True for all hosts, False for none, else the only ones.
    """

    python: str
    version: str
    packages: Mapping[str, str] = field(default_factory=dict)
    network: bool | tuple[str, ...] = True


def unmet(requires: Sequence[str], network: Sequence[str], surroundings: Surroundings) -> list[str]:
    """What is missing, each as a sentence's end: first of `requires`, then of `network`."""
    problems = [_package_problem(text, surroundings) for text in requires]
    problems += [_host_problem(host, surroundings.network) for host in network]
    return [problem for problem in problems if problem is not None]


def _package_problem(text: str, surroundings: Surroundings) -> str | None:
    # Imported here: only extensions that require something pay for it.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415
    from packaging.utils import canonicalize_name  # noqa: PLC0415
    from packaging.version import InvalidVersion  # noqa: PLC0415

    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return f"requires {shown(text)}, which is no requirement; write it like 'httpx>=0.27'"
    python, theirs = surroundings.version, dict[str, str]()
    if python:
        theirs = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    if wanted.marker is not None and not wanted.marker.evaluate(theirs):
        return None
    name = canonicalize_name(wanted.name)
    installed = {canonicalize_name(key): value for key, value in surroundings.packages.items()}
    if (version := installed.get(name)) is None:
        return f"requires {text}, and {surroundings.python} has no {wanted.name}"
    try:
        fits = wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        fits = not wanted.specifier
    return None if fits else f"requires {text}, and {surroundings.python} has {version}"


def _host_problem(host: str, network: bool | tuple[str, ...]) -> str | None:
    if network is True or (isinstance(network, tuple) and host in network):
        return None
    reachable = ", ".join(network) if isinstance(network, tuple) else ""
    return f"needs the network to reach {host}; this session reaches {reachable or 'no host'}"
