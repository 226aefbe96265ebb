output "bucket" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "key_arn" {
  description = "ARN of the key that encrypts the bucket."
  value       = aws_kms_key.this.arn
}
