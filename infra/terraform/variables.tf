# What the module is given: the network, the database and the image of microVMs, which network.yaml,
# database.yaml and microvm.yaml beside this folder make where CloudFormation is used.
# `scripts/package --terraform STAGE OUT` writes the rest of the module, and the other variables, one
# for each of the stack's parameters that is named.
#
# After the first apply, and after each with new migrations, invoke the functions
# palimpsest-<stage>-bootstrap (the first time) and palimpsest-<stage>-migrate, once each. What infra/
# says is to outlive the stack has `prevent_destroy`: take it out of the state before a destroy.

variable "subnet_ids" {
  description = "Two private subnets in different zones; functions need a way out to providers."
  type        = list(string)
  nullable    = false
  validation {
    condition     = length(var.subnet_ids) == 2
    error_message = "Two subnets."
  }
}

variable "function_security_group_id" {
  description = "Security group of the functions; it must be let in to the database proxy."
  type        = string
  nullable    = false
}

variable "migrate_security_group_id" {
  description = "Security group of bootstrap and migrate, which reach the cluster itself."
  type        = string
  nullable    = false
}

variable "database_proxy_host" {
  description = "Host of an RDS Proxy with the IAM_AUTH scheme and TLS required, before `pal`."
  type        = string
  nullable    = false
}

variable "database_proxy_name" {
  description = "Name of that proxy, for its alarms."
  type        = string
  nullable    = false
}

variable "database_proxy_arn" {
  description = "ARN of that proxy."
  type        = string
  nullable    = false
}

variable "database_host" {
  description = "Host of the cluster's writer: PostgreSQL 15 or newer, with pgvector."
  type        = string
  nullable    = false
}

variable "database_identifier" {
  description = "Identifier of the cluster, for its alarms."
  type        = string
  nullable    = false
}

variable "database_resource_id" {
  description = "Resource id of the cluster, which begins with cluster-."
  type        = string
  nullable    = false
}

variable "database_master_secret_arn" {
  description = "ARN of the secret with the master user's password, which bootstrap reads."
  type        = string
  nullable    = false
}

variable "database_key_arn" {
  description = "ARN of the KMS key of that secret."
  type        = string
  nullable    = false
}

variable "microvm_image_arn" {
  description = "ARN of an image of microVMs named palimpsest-<stage>; empty, agents have none."
  type        = string
  default     = ""
  nullable    = false
}

variable "microvm_egress" {
  description = "ARNs of the network connectors of microVMs, by commas; without any, none is started."
  type        = string
  default     = ""
  nullable    = false
}
