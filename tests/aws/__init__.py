"""The stack on an emulator of AWS: LocalStack where LOCALSTACK_HOST answers, else moto's server."""
