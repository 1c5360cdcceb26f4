package v1alpha1

// DefaultProtectedPaths returns the value of publish.protectedPaths that the schema fills in.
// It holds for the branches of Checkpoints whose Task has no spec.publish.
func DefaultProtectedPaths() []string {
	return []string{
		".github/workflows/",
		".github/actions/",
		".gitlab-ci.yml",
		".gitlab/",
		".circleci/",
		".buildkite/",
		".forgejo/",
		".gitea/",
		".woodpecker/",
		".woodpecker.y*ml",
		".drone.y*ml",
		".drone.jsonnet",
		".travis.yml",
		".teamcity/",
		".tekton/",
		".harness/",
		".semaphore/",
		"Jenkinsfile*",
		"jenkins/",
		".jenkins/",
		"azure-pipelines*.yml",
		".azure-pipelines/",
		"bitbucket-pipelines.yml",
		"appveyor.yml",
		".appveyor.yml",
		".cirrus.yml",
		".cirrus.star",
		"buildspec*.yml",
		"cloudbuild*.yaml",
		".zuul.yaml",
		"zuul.d/",
		".zuul.d/",
	}
}
