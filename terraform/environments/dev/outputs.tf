output "store" {
  description = "Value for `tidelog serve --store`."
  value       = "s3://${module.storage.bucket}/${var.prefix}"
}

output "queue_url" {
  value       = module.lambdas.queue_url
  description = "The queue of the bucket's notifications."
}

output "key_arn" {
  description = "The key that encrypts the bucket, for packaging/iam/node.json."
  value       = module.storage.key_arn
}
