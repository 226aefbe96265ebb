output "store" {
  description = "For `tidelog serve --store`."
  value       = "s3://${module.storage.bucket}/${var.prefix}"
}

output "queue_url" {
  value       = module.lambdas.queue_url
  description = "Where the bucket's hints arrive."
}
