"""The stack on LocalStack or on moto's server.

moto's CloudFormation says CREATE_COMPLETE for types that it does not know and makes nothing. So the
template is expanded here, and `kinds.yaml` says of each type who makes it: the emulator's
CloudFormation (`stack`), a maker of ours by API calls (`api`), or no one (`absent`, with the
reason). At the end every resource is looked for through its own service; one that is neither there
nor listed fails the deployment by its name.
"""
