output "queue_url" {
  description = "The queue of the bucket's notifications."
  value       = aws_sqs_queue.hints.id
}

output "dead_letters_url" {
  description = "The dead-letter queue, which gets messages that failed repeatedly."
  value       = aws_sqs_queue.dead_letters.id
}

output "function_name" {
  description = "Name of the function."
  value       = aws_lambda_function.verify_commit.function_name
}

output "role_arn" {
  description = "Role of the function."
  value       = aws_iam_role.function.arn
}
