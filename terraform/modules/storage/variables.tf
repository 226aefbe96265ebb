variable "bucket" {
  description = "Name of the bucket, globally unique in AWS."
  type        = string
}

variable "require_tls" {
  description = "Refuse requests without TLS. Set it to false only for an S3 server that ignores policy conditions."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Let `terraform destroy` delete a non-empty bucket, with all history."
  type        = bool
  default     = false
}

variable "key_deletion_days" {
  description = "Days (7 to 30) until a destroyed key is deleted. Until then it can be restored."
  type        = number
  default     = 30
}
