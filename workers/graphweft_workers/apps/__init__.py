"""What each app may do: the policies that the operator writes into a file (setting ``apps``)."""

from graphweft_workers.apps.policies import AppPolicies, AppPolicy, no_rules, read_policies
from graphweft_workers.apps.quotas import QUOTAS, QuotaName, Quotas

__all__ = ("QUOTAS", "AppPolicies", "AppPolicy", "QuotaName", "Quotas", "no_rules", "read_policies")
