"""The model of the file of app policies.

default: {workflows: []}
apps:
  acme: {workflows: [Support, Sales], quotas: {events_per_s: 100, stored_bytes: 1000000000}}
  globex: {workflows: ["*"]}
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from graphweft_contracts.events import AppId, Name
from graphweft_workers.apps.quotas import Quotas
from graphweft_workers.text.yaml_model import read_model

_EVERY: Final = "*"
_FORM: Final = (
    "the file is `apps: {APP: {workflows: [NAME, …], quotas: {QUOTA: NUMBER}}}` and, for all other apps, `default:` "
    "with the same fields; the quotas are events_per_s, bytes_per_s, stored_bytes, dead_letters, graph_bytes and "
    "property_names"
)


class AppPolicy(BaseModel):
    """What one app may do. A field or quota that an app does not set is that of ``default``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    workflows: frozenset[Name] = Field(
        default=frozenset({_EVERY}), strict=False, description="Workflows whose rules the app uses; `*` is every one."
    )
    quotas: Quotas = Field(default=Quotas(), description="How much the app may send and keep.")

    def allows_workflow(self, workflow: str) -> bool:
        """Return whether the app may use the rules of a workflow, whether or not there are any."""
        return workflow in self.workflows or _EVERY in self.workflows


class AppPolicies(BaseModel):
    """The policies of all apps. Without a file, an app may do everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    default: AppPolicy = Field(default=AppPolicy(), description="Of apps that are not in `apps`.")
    apps: dict[AppId, AppPolicy] = Field(default_factory=dict)

    def of(self, app_id: str) -> AppPolicy:
        """Return the policy of an app."""
        return self._merged.get(app_id, self.default)

    def allows_workflow(self, app_id: str, workflow: str) -> bool:
        """Return whether an app may use the rules of a workflow."""
        return self.of(app_id).allows_workflow(workflow)

    @cached_property
    def _merged(self) -> dict[str, AppPolicy]:
        return {
            app: self.default.model_copy(
                update={name: getattr(policy, name) for name in policy.model_fields_set}
                | {"quotas": policy.quotas.over(self.default.quotas)}
            )
            for app, policy in self.apps.items()
        }


class _File(AppPolicies):
    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        # A half-written file would otherwise open everything to everybody.
        if not self.model_fields_set:
            msg = "it is empty: write `apps:` or `default:`"
            raise ValueError(msg)
        return self


def read_policies(path: Path) -> AppPolicies:
    """Read the file. Raises ``InvalidSettings`` with each fault and its place."""
    return read_model(path, _File, setting="apps", form=_FORM)


def no_rules(workflow: str) -> str:
    """Return the detail of a reply for a workflow without rules, and for one that the app may not use.

    It is the same for both, and names no other workflow: otherwise a token would show the workflows of other apps.
    """
    return (
        f"there are no rules for the workflow {workflow!r} and this app: check the name. `graphweft rules list` "
        "shows the workflows with rules, and the file of GRAPHWEFT_APPS those that an app may use"
    )
