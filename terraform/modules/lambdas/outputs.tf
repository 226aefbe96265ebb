output "queue_url" {
  description = "Where the bucket's hints arrive."
  value       = aws_sqs_queue.hints.id
}

output "dead_letters_url" {
  description = "Where those go that failed again and again."
  value       = aws_sqs_queue.dead_letters.id
}

output "function_name" {
  description = "Name of the function."
  value       = aws_lambda_function.verify_commit.function_name
}

output "role_arn" {
  description = "The role it runs under."
  value       = aws_iam_role.function.arn
}
