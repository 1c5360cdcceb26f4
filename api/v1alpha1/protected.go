package v1alpha1

// DefaultProtectedPaths returns what publish.protectedPaths means when it is left out: files that
// CI systems run, perhaps with a repository's secrets. It is no default of the schema, which would
// give each Task the list of the version that it was created under. It holds for the branches of
// Checkpoints whose Task has no spec.publish as well.
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

// DefaultRiskyTools returns what checkpointPolicy.beforeRiskyTools means when it is left out, which
// is no default of the schema for the same reason.
func DefaultRiskyTools() []RiskyToolPattern {
	const shell = `(?i)(bash|shell|exec|command|terminal)`
	return []RiskyToolPattern{
		{Tool: shell, Input: `(\b|\\[nt])(rm\s[^;&|]*(-[A-Za-z]*[rRf]|--recursive|--force)|rmdir\s|shred\s|truncate\s|mkfs|dd\s[^;&|]*of=|find\s[^;&|]*-(delete|exec))`},
		{Tool: shell, Input: `(\b|\\[nt])git\s[^;&|]*(reset\s|clean\s|checkout\s|restore\s|switch\s|rebase|stash|filter-branch|filter-repo|push\s[^;&|]*(-f|--force|--delete|--mirror)|branch\s[^;&|]*-D)`},
		{Tool: shell, Input: `(?i)\b(drop|truncate)\s+(table|database|schema)\b|\bdelete\s+from\b`},
	}
}
