"""The rights that each role needs on the servers; commands import drivers only through roles."""

from graphweft_workers.drivers.rights import PASSWORD as PASSWORD
from graphweft_workers.drivers.rights import RightsRole as RightsRole
from graphweft_workers.drivers.rights import Server as Server
from graphweft_workers.drivers.rights import commands as commands
