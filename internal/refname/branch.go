package refname

// Branches is the prefix of the refs of the branches that tasks push to the gitstore.
const Branches = "refs/heads/clew/"

// BranchesOf returns the prefix of the refs of a task's branches in the gitstore.
func BranchesOf(taskName string) string { return Branches + taskName + "/" }

// Branch returns the ref of a task's branch in the gitstore.
func Branch(taskName, branch string) string { return BranchesOf(taskName) + branch }
