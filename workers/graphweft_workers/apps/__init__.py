"""What each app may do: the policies that the operator writes into a file (setting ``apps``)."""

from graphweft_workers.apps.policies import AppPolicies, AppPolicy, no_rules, read_policies

__all__ = ("AppPolicies", "AppPolicy", "no_rules", "read_policies")
