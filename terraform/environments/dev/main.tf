# One bucket, and the function that checks commits to it:
#   make lambda-package
#   terraform -chdir=terraform/environments/dev init
#   terraform -chdir=terraform/environments/dev apply -var bucket=my-logs

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40"
    }
  }
}

provider "aws" {
  region                      = var.region
  max_retries                 = var.endpoint == null ? 25 : 2
  s3_use_path_style           = var.endpoint != null
  skip_credentials_validation = var.endpoint != null
  skip_metadata_api_check     = var.endpoint != null
  skip_requesting_account_id  = var.endpoint != null
  endpoints {
    cloudwatch     = var.endpoint
    cloudwatchlogs = var.endpoint
    iam            = var.endpoint
    kms            = var.endpoint
    lambda         = var.endpoint
    s3             = var.endpoint
    sqs            = var.endpoint
    sts            = var.endpoint
  }
}

module "storage" {
  source            = "../../modules/storage"
  bucket            = var.bucket
  require_tls       = var.endpoint == null
  force_destroy     = true
  key_deletion_days = 7
}

module "lambdas" {
  source      = "../../modules/lambdas"
  name        = "tidelog-dev"
  bucket      = module.storage.bucket
  bucket_arn  = module.storage.bucket_arn
  key_arn     = module.storage.key_arn
  prefix      = var.prefix
  package     = var.package
  environment = var.endpoint == null ? {} : { AWS_ENDPOINT_URL = var.endpoint }
}
