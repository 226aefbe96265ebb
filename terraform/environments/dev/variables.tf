variable "bucket" {
  description = "Name of the bucket, globally unique in AWS."
  type        = string
}

variable "prefix" {
  description = "The brokers' prefix in the bucket."
  type        = string
  default     = "live"
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"
}

variable "package" {
  description = "Path of the function's package."
  type        = string
  default     = "../../../build/lambda/verify_commit.zip"
}

variable "endpoint" {
  description = "URL of a server to use in place of AWS; null for AWS."
  type        = string
  default     = null
}
