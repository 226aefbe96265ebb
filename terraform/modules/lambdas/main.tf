# A commit to a manifest invokes a function: bucket -> notification -> queue -> function. The notification is only a hint. The
# function finds its work in the manifest and in its own cursor. Messages that fail repeatedly go to a dead-letter queue. A
# message in that queue raises an alarm, and so does a damaged segment.

locals {
  name   = "${var.name}-${var.reader}"
  prefix = var.prefix == "" ? "" : "${trim(var.prefix, "/")}/"
}

resource "aws_sqs_queue" "dead_letters" {
  name                      = "${local.name}-dead-letters"
  message_retention_seconds = 14 * 24 * 3600
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue" "hints" {
  name = "${local.name}-hints"
  # AWS's advice: six times the function's time limit, so that a message in progress is not redelivered.
  visibility_timeout_seconds = 6 * var.timeout_s
  message_retention_seconds  = 4 * 24 * 3600
  sqs_managed_sse_enabled    = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = var.max_receive_count
  })
}

data "aws_iam_policy_document" "hints" {
  statement {
    sid       = "TheBucketNotifies"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.hints.arn]
    principals {
      type        = "Service"
      identifiers = ["s3.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [var.bucket_arn]
    }
  }
}

resource "aws_sqs_queue_policy" "hints" {
  queue_url = aws_sqs_queue.hints.id
  policy    = data.aws_iam_policy_document.hints.json
}

# A bucket has only one notification configuration. This resource owns it.
resource "aws_s3_bucket_notification" "manifests" {
  bucket = var.bucket
  queue {
    queue_arn     = aws_sqs_queue.hints.arn
    events        = ["s3:ObjectCreated:*"]
    filter_prefix = local.prefix == "" ? null : local.prefix
    filter_suffix = ".json"
  }
  depends_on = [aws_sqs_queue_policy.hints]
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "function" {
  name               = local.name
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "function" {
  name = local.name
  role = aws_iam_role.function.id
  policy = templatefile("${path.module}/verify_commit_policy.json.tftpl", {
    bucket_arn    = var.bucket_arn
    prefix        = local.prefix
    reader        = var.reader
    key_arn       = var.key_arn
    queue_arn     = aws_sqs_queue.hints.arn
    log_group_arn = aws_cloudwatch_log_group.function.arn
  })
}

resource "aws_cloudwatch_log_group" "function" {
  name              = "/aws/lambda/${local.name}"
  retention_in_days = var.log_retention_days
}

resource "aws_lambda_function" "verify_commit" {
  function_name    = local.name
  description      = "Checks every batch of each segment that a commit added to the bucket"
  role             = aws_iam_role.function.arn
  runtime          = "python3.11"
  architectures    = [var.architecture]
  handler          = "lambdas.verify_commit.handler"
  filename         = var.package
  source_code_hash = filebase64sha256(var.package)
  timeout          = var.timeout_s
  memory_size      = var.memory_mib
  environment {
    variables = merge(
      { TIDELOG_STORE = "s3://${var.bucket}/${local.prefix}", TIDELOG_READER = var.reader },
      var.environment,
    )
  }
  depends_on = [aws_cloudwatch_log_group.function, aws_iam_role_policy.function]
}

resource "aws_lambda_event_source_mapping" "hints" {
  event_source_arn        = aws_sqs_queue.hints.arn
  function_name           = aws_lambda_function.verify_commit.arn
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]
  scaling_config {
    maximum_concurrency = var.max_concurrency
  }
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  alarm_name          = "${local.name}-dead-letters"
  alarm_description   = "Messages failed ${var.max_receive_count} times: read the function's log, then redrive the queue"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead_letters.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
}

resource "aws_cloudwatch_log_metric_filter" "damaged" {
  name           = "${local.name}-damaged"
  log_group_name = aws_cloudwatch_log_group.function.name
  pattern        = "{ $.verdict = \"damaged\" || $.verdict = \"missed\" }"
  metric_transformation {
    name      = "${local.name}-damaged"
    namespace = "tidelog"
    value     = "1"
  }
}

resource "aws_cloudwatch_metric_alarm" "damaged" {
  alarm_name          = "${local.name}-damaged"
  alarm_description   = "A segment in the bucket is damaged or was not checked. The function's log names it; `tidelog fsck` checks the whole bucket"
  namespace           = "tidelog"
  metric_name         = "${local.name}-damaged"
  statistic           = "Sum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
}
