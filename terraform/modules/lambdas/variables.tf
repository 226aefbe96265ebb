variable "name" {
  description = "Prefix of the names of this module's resources."
  type        = string
  default     = "tidelog"
}

variable "reader" {
  description = "Reader name that owns the cursors and verdicts in the bucket: letters, digits, '.', '_' and '-'."
  type        = string
  default     = "verify-commit"
}

variable "bucket" {
  description = "Name of the bucket that holds the cluster's history."
  type        = string
}

variable "bucket_arn" {
  description = "ARN of the bucket."
  type        = string
}

variable "key_arn" {
  description = "ARN of the KMS key that encrypts the bucket."
  type        = string
}

variable "prefix" {
  description = "The brokers' prefix in the bucket (--store s3://BUCKET/PREFIX); empty for none."
  type        = string
  default     = ""
}

variable "package" {
  description = "Path of the function's package, as `make lambda-package` prints it."
  type        = string
}

variable "architecture" {
  description = "Architecture of the machine that built the package: x86_64 or arm64."
  type        = string
  default     = "x86_64"
}

variable "timeout_s" {
  description = "Time limit of an invocation in seconds. The function starts no segment in the last 60 s, which suffice to check about 1 GiB."
  type        = number
  default     = 900
  validation {
    condition     = var.timeout_s > 60 && var.timeout_s <= 900
    error_message = "timeout_s must be between 61 and 900."
  }
}

variable "memory_mib" {
  description = "Memory of an invocation in MiB. Its shares of processor and network grow with it. The function needs about 100 MiB."
  type        = number
  default     = 512
}

variable "max_concurrency" {
  description = "Maximum concurrent invocations (2 to 1000)."
  type        = number
  default     = 4
}

variable "max_receive_count" {
  description = "Deliveries of a message before it goes to the dead-letter queue. The first check of a long history takes one delivery for every 15 minutes of work."
  type        = number
  default     = 50
}

variable "log_retention_days" {
  description = "Retention of the function's log in days."
  type        = number
  default     = 30
}

variable "alarm_actions" {
  description = "ARNs, such as SNS topics, that receive alarms."
  type        = list(string)
  default     = []
}

variable "environment" {
  description = "Additional environment variables of the function, such as AWS_ENDPOINT_URL_S3 for an S3 server other than AWS."
  type        = map(string)
  default     = {}
}
