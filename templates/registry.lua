-- The arch file of each SM. An SM without a row takes the nearest lower one.
return {
  [75] = "sm75",
  [80] = "sm80",
  [86] = "sm86",
  [89] = "sm89",
  [90] = "sm90",
}
