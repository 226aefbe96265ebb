variable "bucket" {
  description = "Name of the bucket, unique in all of AWS."
  type        = string
}

variable "require_tls" {
  description = "Refuse requests without TLS. False only for an S3 server that ignores the condition of a policy."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Let `terraform destroy` delete a bucket that is not empty: all history."
  type        = bool
  default     = false
}

variable "key_deletion_days" {
  description = "Days between the destruction of the key and its end, in which it can be saved (7 to 30)."
  type        = number
  default     = 30
}
