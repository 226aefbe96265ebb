variable "name" {
  description = "Begins the names of all that this module makes."
  type        = string
  default     = "tidelog"
}

variable "reader" {
  description = "Whose cursors and verdicts these are, in the bucket: letters, digits, '.', '_' and '-'."
  type        = string
  default     = "verify-commit"
}

variable "bucket" {
  description = "Name of the bucket that holds the cluster's history."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of that bucket."
  type        = string
}

variable "key_arn" {
  description = "ARN of the KMS key that encrypts it."
  type        = string
}

variable "prefix" {
  description = "The brokers' prefix in the bucket, as in --store s3://BUCKET/PREFIX; empty if they have none."
  type        = string
  default     = ""
}

variable "package" {
  description = "Path of the function's package: what `make lambda-package` printed."
  type        = string
}

variable "architecture" {
  description = "That of the machine where the package was built: x86_64 or arm64."
  type        = string
  default     = "x86_64"
}

variable "timeout_s" {
  description = "Time limit of an invocation. The function stops beginning segments 60 s before it: about 1 GiB is checked in that time."
  type        = number
  default     = 900
  validation {
    condition     = var.timeout_s > 60 && var.timeout_s <= 900
    error_message = "timeout_s lies between 61 and 900."
  }
}

variable "memory_mib" {
  description = "Memory of an invocation, and with it its share of processors and network. The function itself needs about 100."
  type        = number
  default     = 512
}

variable "max_concurrency" {
  description = "Invocations at once (2 to 1000)."
  type        = number
  default     = 4
}

variable "max_receive_count" {
  description = "Deliveries of a message before it goes to the dead letters. A first look at long history takes one for every 15 minutes."
  type        = number
  default     = 50
}

variable "log_retention_days" {
  description = "Days that the function's log is kept."
  type        = number
  default     = 30
}

variable "alarm_actions" {
  description = "ARNs (of SNS topics, say) that are told of an alarm."
  type        = list(string)
  default     = []
}

variable "environment" {
  description = "More environment variables of the function, such as AWS_ENDPOINT_URL_S3 for an S3 server other than AWS."
  type        = map(string)
  default     = {}
}
